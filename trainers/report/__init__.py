"""The report of a training run: one HTML file for people that needs no network, and its figures as
files. `facts` reads the run, `figures` says what is drawn, `page` writes the file.
"""
