"""Folders of images, written as shards.

`files` finds images and masks, `labels` finds their labels, `tables` reads tables of labels, `forms` lists the forms
that images may take in a shard, `pixels` decodes images, and `writing` is `memload.write_images`.

Imports only from: the root modules, memory, columns, casts, sampling, formats, engine, device, dataset, loader,
writing, graphs.
"""
