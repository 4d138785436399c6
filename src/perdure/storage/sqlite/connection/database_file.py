"""The path of a SQLite database: checks it without ever opening the file.

Opening and closing the file ourselves would drop SQLite's locks on it. So this module calls `stat`, and everything about the
contents is read through SQLite.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from perdure.errors import StoreError

NETWORK_FILE_SYSTEMS = frozenset(
    """
    nfs nfs3 nfs4 cifs smb smb2 smb3 smbfs ncpfs afs ceph glusterfs lustre gpfs beegfs orangefs pvfs2 davfs
    fuse.sshfs fuse.glusterfs fuse.ceph fuse.davfs fuse.rclone fuse.s3fs fuse.gcsfuse fuse.juicefs
    """.split()  # noqa: SIM905
)

FileId = tuple[int, int]  # device and inode


@dataclass(frozen=True, slots=True)
class DatabaseFile:
    """The path of a database, or None for one in memory. `signals`: whether this process wakes others, and is woken."""

    path: Path | None
    signals: bool = True

    @property
    def in_memory(self) -> bool:
        return self.path is None

    @property
    def reaches_others(self) -> bool:
        """Whether signals go to and come from other processes."""
        return self.signals and not self.in_memory

    def __str__(self) -> str:
        return ":memory:" if self.path is None else str(self.path)

    def exists(self) -> bool:
        """Whether there is a database. An empty file is none yet."""
        return self.path is not None and self.path.exists() and self.path.stat().st_size > 0

    def id(self) -> FileId | None:
        """The file that the path names now, None if there is none."""
        try:
            found = None if self.path is None else os.stat(self.path)
        except FileNotFoundError:
            return None
        return None if found is None else (found.st_dev, found.st_ino)

    def beside(self) -> Path | None:
        """The directory beside the database for locks and sockets, if there can be one."""
        if self.path is None:
            return None
        directory = self.path.with_name(f"{self.path.name}-perdure")
        try:
            directory.mkdir(exist_ok=True)
        except OSError:
            return None
        return directory

    def check(self) -> None:
        """StoreError if there can be no database at this path."""
        if self.path is None:
            return
        directory = self.path.parent
        if not directory.is_dir():
            raise StoreError(f"cannot open {self.path}: the directory {directory} does not exist; create it first")
        if self.path.is_dir():
            raise StoreError(f"cannot open {self.path}: it is a directory; name a file inside it")
        if self.path.exists() and not os.access(self.path, os.R_OK | os.W_OK):
            raise StoreError(
                f"cannot write to {self.path}: the file is read-only for this user; change its permissions"
            )
        if not os.access(directory, os.W_OK | os.X_OK):
            raise StoreError(
                f"cannot write to the directory {directory}: SQLite keeps its journal there; change its permissions"
            )
        kind = file_system_of(directory)
        if kind in NETWORK_FILE_SYSTEMS:
            raise StoreError(
                f"{self.path} lies on a network file system ({kind}), where SQLite's locks are not safe; "
                "use a local disk, or a server store such as postgresql://"
            )


def file_system_of(directory: Path) -> str | None:
    """The type of the file system that holds a directory, if the system reports it."""
    try:
        mounts = Path("/proc/self/mounts").read_text("utf-8", "surrogateescape")
    except OSError:
        return None
    real = os.path.realpath(directory)
    best, kind = "", None
    for line in mounts.splitlines():
        fields = line.split(" ")
        mounted = _unescape(fields[1])
        inside = real == mounted or real.startswith(mounted.rstrip("/") + "/")
        if inside and len(mounted) >= len(best):
            best, kind = mounted, fields[2]
    return kind


def _unescape(path: str) -> str:
    for code, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        path = path.replace(code, character)
    return path
