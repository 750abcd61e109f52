"""What runs on a GPU, or for one."""
