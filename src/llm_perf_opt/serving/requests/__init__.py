"""Why the slowest requests of a load were slow: parts of their end-to-end time, and the requests that delayed them.

Read in this order. `request_records`: steps of an engine, and the document `slow_requests.json`. `adapters`: what makes
an engine write its steps, per version. `request_trace`: the written lines as records, in the clock of the load.
`request_timeline`: when each step executed, and what it would have taken without prefill. `request_attribution`: one
request into parts, each moment in one of them. `bounds`: the same from arrival times alone, where the engine writes no
steps. `delays`: which requests held up the others. `step_kernels`: what a capture of the server recorded in each step.
`request_causes`: the slowest requests of each level. `sections`:
tables of the report. `stored_requests`: files of a run.
"""
