"""memload under other libraries.

`accelerate` is `memload.prepare`, `carried` what a loader's collate function carries to loaders that are built of it,
`hugging_face` reads Hugging Face's datasets. PyTorch Geometric is in graphs/pyg.py, Lightning in
monitoring/lightning.py.
"""
