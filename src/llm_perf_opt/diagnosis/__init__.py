"""One path from evidence to answer: evidence → scopes → one ledger per scope → causes claim cells → Diagnosis.

Read in this order:

ledger       cells that sum to the wall time of a scope, in integer nanoseconds; claims on them, and findings
evidence     what was recorded in the captures of one program
facts        a run's figures, each known with its source or unknown with a reason; `waterfall` stacks them by phase
scope        the stretches of time that are judged: capture, steady state, phases, request
marked_phases   phases a capture marks by ranges, as scopes that are not judged
host_scope   the scope of a program's wall time, from samples of its stacks
program      what is known about the program observed: framework, engine, training or inference, traits
cause        causes as data: `causes/<id>.toml` has cells, words and advice, `causes/<id>.py` the judge where needed
diagnose     claims → findings, the more specific claim wins; the answer in one sentence, and what was not recorded
kernels_alone the answer where kernels are known without a timeline: files of ncu, summaries
diagnosis_document     the records of analysis.json and diagnosis.json
analyze      the assembler of captures, behind every command and stage that reads one
run          the assembler of a run: clean phases first, then what only its capture says
experiments  what `llm-perf optimize` can try, by the ids the causes name

Sub-packages: `gaps` what happened while no kernel ran, `host` what sampled stacks say by cause and source line,
`causes` the causes themselves.

Called by `profiling`, `pipeline`, `report`, `compare` and `optimize`; nothing here edits a finding.
"""
