"""Folders of pictures, written as shards.

`files` finds pictures and masks, `labels` what they are labelled with, `pixels` decodes them, `writing` is
`memload.write_images`.
"""
