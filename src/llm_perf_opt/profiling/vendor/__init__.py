"""Pure builders of vendor command lines: values in, a list of words out, one flag a line.

`launch` builds the command of our own workload, `nsys` and `ncu` wrap it. `vendor_tools` finds the tools, their
versions and what they can do. Nothing here starts a program; the stages do, through their context.
"""
