"""Archives: encodings packed into one file for another machine.

An archive is a plain tar file: `manifest.json` first, then `encodings/KEY.safetensors` with the same bytes as in a
folder. The signatures of the models that computed them follow. No path in an archive is used as a path, and every file
is verified before one is stored.
"""

from __future__ import annotations

import io
import json
import os
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, NamedTuple

from promptcache.atomic import atomic_write
from promptcache.diagnostics import CorruptEncoding, StoreError
from promptcache.kv.codec import StoredEncoding
from promptcache.kv.files.blob_tier import BlobTier, write_signature
from promptcache.kv.files.format import check_payload, pack, read_header, unpack
from promptcache.kv.keys import file_name, key_of
from promptcache.kv.signature import is_signature, signature_in

FORMAT = "promptcache archive"
VERSION = 1
_MANIFEST = "manifest.json"
_FOLDER = "encodings/"


class ArchiveReport(NamedTuple):
    """Report of `write_archive` or `read_archive`.

    Attributes:
        keys: Keys of all encodings.
        new: Number of encodings that the tier did not hold before.
        nbytes: Bytes of their files, and of the signatures of their models.
    """

    keys: tuple[str, ...]
    new: int
    nbytes: int


def write_archive(tier: BlobTier, keys: Sequence[str], target: Path, about: Mapping[str, str]) -> ArchiveReport:
    """Pack encodings into an archive, which is written atomically.

    Args:
        tier: Tier that holds the encodings.
        keys: Keys of the encodings.
        target: Path of the archive. A link is followed.
        about: Further facts for the manifest.

    Raises:
        StoreError: The tier does not hold one of the encodings.
        OSError: The archive cannot be written.
    """
    wanted = tuple(dict.fromkeys(keys))
    try:
        with atomic_write(Path(os.path.realpath(target))) as file:
            nbytes = _write(tier, wanted, file, about)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(target)) from None
    return ArchiveReport(wanted, 0, nbytes)


def read_archive(source: Path, tier: BlobTier) -> ArchiveReport:
    """Store the encodings of an archive in a tier, after all of them were verified.

    Raises:
        StoreError: The file is not a valid archive; nothing was stored. Or the budget of the tier is too small; the
            encodings that fit were stored.
        OSError: The archive cannot be read.
    """
    keys = tuple(stored.recipe.key for stored, _ in _verified(source) if not is_signature(stored))
    before = set(tier.keys())
    nbytes = 0
    for stored, size in _verified(source):  # verified again: the file may have been replaced
        if is_signature(stored):
            write_signature(tier, stored)
        else:
            tier.write(stored)
        nbytes += size
    lost = len(set(keys) - set(tier.keys()))  # did not fit, or were evicted by later ones
    if lost:
        raise StoreError(f"{source}: the store's limit has no room for {lost:,} of {len(keys):,} encodings")
    return ArchiveReport(keys, len(set(keys) - before), nbytes)


def _write(tier: BlobTier, keys: Sequence[str], file: IO[bytes], about: Mapping[str, str]) -> int:
    signatures = _signatures(tier, keys)
    manifest = {"format": FORMAT, "version": VERSION, "about": dict(about), "encodings": [*keys, *signatures]}
    total = 0
    with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as archive:
        data = json.dumps(manifest, indent=1).encode()
        archive.addfile(_member(_MANIFEST, len(data)), io.BytesIO(data))
        for key in (*keys, *signatures):
            head, payload = pack(signatures.get(key) or _stored(tier, key))
            content = b"".join((head, *payload))
            archive.addfile(_member(f"{_FOLDER}{file_name(key)}", len(content)), io.BytesIO(content))
            total += len(content)
    return total


def _stored(tier: BlobTier, key: str) -> StoredEncoding:
    stored = tier.read(key)
    if stored is None:
        raise StoreError(f"encoding {key} is not in the store any more")
    return stored


def _signatures(tier: BlobTier, keys: Sequence[str]) -> dict[str, StoredEncoding]:
    """Return the signatures of the models that computed encodings by key, as far as the tier has them."""
    found = {}
    for fingerprint in dict.fromkeys(_stored(tier, key).recipe.fingerprint for key in keys):
        if (named := signature_in(fingerprint)) is not None and (place := tier.signatures(named[0])) is not None:
            found[named[1]] = place.read(named[1])
    return {key: each for key, each in found.items() if each is not None}


def _member(name: str, size: int) -> tarfile.TarInfo:
    """Return an entry without user and time, so that equal encodings give equal archives."""
    member = tarfile.TarInfo(name)
    member.size, member.mode = size, 0o644
    return member


def _verified(source: Path) -> Iterator[tuple[StoredEncoding, int]]:
    """Yield the encodings of an archive, each with the bytes of its file.

    Raises:
        StoreError: The file is not a valid archive.
    """
    expected: list[str] | None = None
    seen: set[str] = set()
    try:
        with tarfile.open(source, mode="r:") as archive:
            for member in archive:
                if expected is None:
                    expected = _manifest(archive, member, source)
                    continue
                yield _encoding(archive, member, source, seen)
    except (tarfile.TarError, EOFError, ValueError, OverflowError) as error:
        raise StoreError(f"{source}: is not an archive of encodings: {error}") from error
    if expected is None:
        raise StoreError(f"{source}: is not an archive of encodings: it is empty")
    if set(expected) != seen:
        raise StoreError(
            f"{source}: is not complete: {len(seen & set(expected)):,} of the {len(set(expected)):,} encodings in its "
            f"manifest are there, and {len(seen - set(expected)):,} others"
        )


def _manifest(archive: tarfile.TarFile, member: tarfile.TarInfo, source: Path) -> list[str]:
    if member.name != _MANIFEST or not _is_plain(member):
        raise StoreError(f"{source}: is not an archive of encodings: it does not begin with a manifest")
    try:
        manifest = json.loads(_content(archive, member))
        found, version, keys = manifest["format"], manifest["version"], manifest["encodings"]
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise StoreError(f"{source}: its manifest cannot be read: {error}") from error
    if found != FORMAT or not isinstance(keys, list) or not all(isinstance(key, str) for key in keys):
        raise StoreError(f"{source}: is not an archive of encodings: its manifest has another form")
    if version != VERSION:
        raise StoreError(f"{source}: has archive version {version}; this library reads version {VERSION}")
    return keys


def _encoding(
    archive: tarfile.TarFile, member: tarfile.TarInfo, source: Path, seen: set[str]
) -> tuple[StoredEncoding, int]:
    key = key_of(member.name.removeprefix(_FOLDER)) if member.name.startswith(_FOLDER) else None
    if key is None or not _is_plain(member):
        raise StoreError(f"{source}: holds {member.name!r}, which is not an encoding; nothing was stored")
    if key in seen:
        raise StoreError(f"{source}: holds {key} twice; nothing was stored")
    seen.add(key)
    data = _content(archive, member)
    where = f"{source}/{member.name}"
    try:
        header, start = read_header(data, len(data), where, key)
        payload = memoryview(bytearray(memoryview(data)[start:]))
        check_payload(header, payload, where)
    except CorruptEncoding as fault:
        raise StoreError(f"{fault}; nothing was stored") from fault
    return unpack(header, payload), len(data)


def _is_plain(member: tarfile.TarInfo) -> bool:
    """Return whether a member is a file whose bytes all lie in the archive."""
    return member.isreg() and not member.issparse()


def _content(archive: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    assert isinstance(archive.fileobj, io.BufferedReader)
    if member.offset_data + member.size > os.fstat(archive.fileobj.fileno()).st_size:  # before memory is allocated
        raise EOFError(f"{member.name} is truncated")
    file = archive.extractfile(member)
    data = file.read() if file is not None else b""
    if len(data) != member.size:
        raise EOFError(f"{member.name} is truncated")
    return data
