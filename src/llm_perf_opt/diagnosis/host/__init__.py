"""What a program did on the host, from samples of its Python stacks.

stacks  py-spy's collapsed stacks as records: process, thread, frames, count
calls   what a line of source code does: calls and operators, with imports, assignments and seen types resolved
environment  what environment variables and switches of torch do to a program's speed
owners  the cell of the time ledger each stack belongs to, and the user's function and line that own it

Patterns are data: `owners.toml`, `environment.toml`. Called by `profiling.sampled`.
"""
