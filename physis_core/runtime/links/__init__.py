"""How hidden states travel: one interface, chosen by the plan."""
