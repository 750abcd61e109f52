"""What is known of rows, of whatever kind.

`numbers` checks row numbers, `stored` and `costs` say how rows lie and what reading one takes, `blocks` reads rows
that are stored across, `borders` are the rows at which recordings begin, `unequal` is said of rows that make no array.
"""
