"""What is profiled when no program is given: our own loop over models and data.

session     load, warm up, time the clean pass          generation  one sample: prefill, then token by token
profiled    the pass under torch.profiler               results, journal  what was measured, kept while it runs
dataset     the samples                                 outputs     predictions and a gallery of them
device, nvtx      where it runs, and its ranges         models  one adapter per kind of model
ranks       several processes of one model              host_state  clocks, governors, other load before a pass
watcher     counters of plug-ins during a pass          agreement   are the outputs of two configurations the same?

Runs only in child processes that answer with files; the orchestrator never imports torch.
"""
