"""Deciding what runs where: profiles, plans, placement, admission."""
