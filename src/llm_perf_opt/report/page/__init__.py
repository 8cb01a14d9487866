"""What only the HTML page needs; the decisions about what is shown are made before, in `report/view`.

`roofline_layout` places points on a roofline plot, `glossary` explains terms where they are read. Called by
`report/html.py`.
"""
