"""Where Hydra looks for the classes of `llm_perf_opt.pipeline.jobs`: it takes plug-ins from hydra_plugins alone.

Every Hydra program on the machine imports this package, so it is empty; modules with an underscore are left alone.
"""
