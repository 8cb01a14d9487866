"""Why the slowest requests of a load were slow: parts of their end-to-end time, and the requests that delayed them.

Read in this order. `records`: steps of an engine, and the document `slow_requests.json`. `adapters`: what makes an
engine write its steps, per version. `trace`: the written lines as records, in the clock of the load. `timeline`: when
each step executed, and what it would have taken without prefill. `attribution`: one request into parts, each moment in
one of them. `bounds`: the same from arrival times alone, where the engine writes no steps. `delays`: which requests
held up the others. `explain`: the slowest requests of each level. `sections`: tables of the report. `stored`: files of
a run.
"""
