"""Pictures and their copies, beside what people write by hand: `python -m bench.run --suite media`.

`run` takes turns and makes the table and the picture, `photo` is what everybody is given, `yamchi_images` and `yamchi_sync` are
our side, `boto3_sync` and `bench/node/sharp_images.js` the others. Only ratios within one run mean anything.
"""
