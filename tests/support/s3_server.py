"""An S3 on this machine: moto's server.

with s3_server("lab") as server:
    for name, value in server.environment.items(): monkeypatch.setenv(name, value)
    ... open_location("s3://lab/folder")
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import boto3
from botocore.loaders import JSONFileLoader
from servers import running

#: What the files that describe AWS's services say. Every session parses them, which takes longer than a test's requests.
_descriptions = cache(JSONFileLoader().load_file)
JSONFileLoader.load_file = lambda self, path: _descriptions(path)


@dataclass
class S3Server:
    url: str

    @property
    def environment(self) -> dict[str, str]:
        """What a client needs to find it."""
        return {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    @cached_property
    def client(self) -> Any:
        return boto3.client(
            "s3",
            endpoint_url=self.url,
            aws_access_key_id="test",
            aws_secret_access_key="test",
            region_name="us-east-1",
        )

    def keys(self, bucket: str) -> list[str]:
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=bucket)
        return [item["Key"] for page in pages for item in page.get("Contents", [])]


@contextlib.contextmanager
def s3_server(*buckets: str) -> Iterator[S3Server]:
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
    from werkzeug.serving import make_server

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    application = DomainDispatcherApplication(create_backend_app)
    server = make_server("127.0.0.1", 0, application, threaded=True, request_handler=MotoRequestHandler)
    with running(server) as url:
        handle = S3Server(url)
        for bucket in buckets:
            handle.client.create_bucket(Bucket=bucket)
        yield handle
