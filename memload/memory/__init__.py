"""The memory, disk space and threads that this process may use.

`budget` reads the limits of the process, and `limits` describes each limit on memory. `guards` refuse what cannot fit
into memory or onto a disk. `refusals` make the errors for what the system itself refused.
`arenas` are memory that rows are loaded into, of one process or of all. `threads` start as many as the system gives.

Imports only from: the root modules.
"""
