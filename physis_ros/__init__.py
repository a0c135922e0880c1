"""ROS 2 nodes, messages and the demo robot of Physis; the engine itself is `physis_core`."""
