"""The path to a GPU, and what is to be known of one."""
