"""boto3 as most scripts use it: one file after the other. `python -m bench.media.boto3_sync FOLDER PREFIX`."""

import json
import os
import sys
import time
from pathlib import Path

import boto3

client = boto3.client(
    "s3",
    endpoint_url=os.environ["S3_ENDPOINT"],
    aws_access_key_id=os.environ["S3_ACCESS_KEY_ID"],
    aws_secret_access_key=os.environ["S3_SECRET_ACCESS_KEY"],
    region_name="us-east-1",
)


def main(folder: Path, prefix: str) -> None:
    files = sorted(folder.iterdir())
    client.head_bucket(Bucket=os.environ["S3_BUCKET"])  # the connection is open
    start = time.perf_counter()
    for file in files:
        with file.open("rb") as content:
            client.put_object(
                Bucket=os.environ["S3_BUCKET"],
                Key=f"{prefix}/{file.name}",
                Body=content,
                ContentType="image/webp",
                CacheControl="public, max-age=31536000, immutable",
            )
    print(json.dumps({"rate": len(files) / (time.perf_counter() - start)}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
