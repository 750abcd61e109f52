"""What this process may use of the machine: the `budget`, `disk_space`, and `guards` that refuse what cannot fit."""
