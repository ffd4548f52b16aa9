"""The page at `/`: a chat, and beside it what runs in the server's slots (docs/page.md). `page.html` is the
page, `page` sends it; `glance` makes snapshots while a page is open, and no others.
"""
