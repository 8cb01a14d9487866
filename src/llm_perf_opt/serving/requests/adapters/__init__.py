"""What makes an engine write which request was in which step: one adapter for a range of versions.

`choose` finds the adapter of a server that is to be started, or says why there is none. `installed` finds the version
of a package from its files. `inject` is a folder for PYTHONPATH: the modules in it run in the server's own Python.
"""
