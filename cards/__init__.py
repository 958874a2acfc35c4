"""What a dataset looks like: for people who have it, and for those who wonder whether they want it.

`overview` has the numbers that everything here draws. `figure` (extra ``plot``) is one figure of them; `frames` makes sheets
and animations. `html_card` is a page that needs no other file, `hub_card` a README for the Hugging Face Hub, `croissant`
metadata for catalogues. `facts` are the lines of cards that leave this machine, `card_file` checks where files are written.
"""
