"""What counts as a secret.

`secret_shapes` knows secrets by the names before them and by what they look like; `known_secrets` collects the values
of the environment and of the files programs keep secrets in, in every form a program may write them. `core.redact`
takes both out of texts, commands, data and files. `secret_shapes` needs the standard library alone: the supervisor
imports it.
"""
