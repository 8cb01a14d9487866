"""Did it help? What two measurements say about each other, and how sure that is. Nothing here touches a file.

Read in this order:

- `student`: Student's distribution, for intervals of few repeats;
- `stability`: one series of repeats: do they agree, and how many more would settle it;
- `statistics`: two series: difference, interval, p-value, verdict; corrections for many comparisons;
- `matching`: which kernel, operator or range of one capture is which of the other;
- `differences`: what appeared, vanished and moved, and steps from one time to the other that add up;
- `settings`: what else changed between two runs, and what makes them incomparable;
- `gate`: conditions such as `tpot_ms<=+5%`, and whether they hold;
- `comparison`: all of it as one document, `compare.json`.
"""
