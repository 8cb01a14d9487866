"""Did it help? What two measurements say about each other, and how certain that is. Nothing here touches a file.

Read in this order:

- `student`: Student's distribution, for intervals of few repeats;
- `stability`: one series of repeats: do they agree, and how many more are needed for a conclusion;
- `statistics`: two series: difference, interval, p-value, verdict, start-to-start variation; corrections for many
  comparisons;
- `matching`: which kernel, operator or range of one capture is which of the other;
- `differences`: what appeared, vanished and moved, and steps from one time to the other that add up;
- `compared_captures`: two captures as samples of their step or kernels, and what moved most between them;
- `settings`: what else changed between two runs, and which of it is different work;
- `gate`: conditions such as `tpot_ms<=+5%`, and whether they hold;
- `comparison`: all of it as one document, `compare.json`.

Sub-package: `bisect`, the search for the version that is slower.
"""
