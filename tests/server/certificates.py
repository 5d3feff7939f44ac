"""Certificates of an authority that lives as long as a test."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass(frozen=True)
class Certificate:
    """PEM files; `both` holds the certificate and its key, as HAProxy wants them."""

    cert: Path
    key: Path
    both: Path


class Authority:
    """Signs certificates for localhost."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        if shutil.which("openssl") is None:
            pytest.skip("openssl is not here to make certificates")
        self.folder = folder / name
        self.folder.mkdir()
        self.cert, self._key = self.folder / "ca.pem", self.folder / "ca.key"
        words = ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={name}"]
        _openssl(*words, "-keyout", str(self._key), "-out", str(self.cert))

    def certificate(self, name: str) -> Certificate:
        files = Certificate(*(self.folder / f"{name}.{kind}" for kind in ("crt", "key", "pem")))
        request, extensions = self.folder / f"{name}.csr", self.folder / f"{name}.ext"
        extensions.write_text("subjectAltName=DNS:localhost,IP:127.0.0.1\n")
        words = ["req", "-newkey", "rsa:2048", "-nodes", "-subj", f"/CN={name}"]
        _openssl(*words, "-keyout", str(files.key), "-out", str(request))
        words = ["x509", "-req", "-days", "2", "-CA", str(self.cert), "-CAkey", str(self._key), "-CAcreateserial"]
        _openssl(*words, "-in", str(request), "-extfile", str(extensions), "-out", str(files.cert))
        files.both.write_bytes(files.cert.read_bytes() + files.key.read_bytes())
        return files


def _openssl(*words: str) -> None:
    done = subprocess.run(["openssl", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
