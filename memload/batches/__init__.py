"""What a batch is made of, and how samples become one."""
