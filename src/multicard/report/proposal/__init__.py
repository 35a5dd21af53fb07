"""One page in Markdown for an application for computing time.

`propose` chooses what to apply for and puts the page together. `facts` and `tables` make its sections, `application`
computes what the work that is applied for takes, and `document` has the page itself and writes its files.
"""
