"""What is shown, decided once for every renderer: one module per section of the page.

`report` puts them together. A view takes facts and gives frozen records with text ready to print beside the numbers;
what is not known comes with its reason and what to enable.
"""
