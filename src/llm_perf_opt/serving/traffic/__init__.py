"""What is sent to a server: sessions of one or more turns, made up or read from a file.

`sessions` has the records and the interface of a source of traffic. `synthetic` makes prompts from common words,
`pictures` images. `traffic_files` reads recorded traffic, `recorded_traffic` turns it into what is sent.
"""
