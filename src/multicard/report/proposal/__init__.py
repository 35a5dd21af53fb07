"""One page in Markdown for an application for computing time.

`propose` chooses what to apply for and gathers the page from its sections, in `facts` and `tables`; `application` has
the work that is applied for; `document` is the page itself, and its files.
"""
