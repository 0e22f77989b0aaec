"""Hardware efficiency and plans: how many groups, devices, servers and examples a batch."""
