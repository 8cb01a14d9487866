"""What a run's figures say should change.

`facts` holds the figures, each known with its source or unknown with a reason; `waterfall` puts those of one phase in
order, from the physical limit to the measured time; `phase_kernels` cuts kernels by phase for the rules that look at
them. `rules` has one module per rule.
"""
