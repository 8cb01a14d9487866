"""What only the HTML page needs: places on a roofline plot, and words explained where they are read.

`report/html.py` calls both; the decisions about what is shown are made before, in `report/view`.
"""
