"""Hosts with apt's lists, keys, toolkits and condas from a few words, for tests of diagnose.

Keys of a case's tree beside those of tests/unit/trees.py:
    keyrings {path: [names]}: each name is a key of its own; ``empty``, ``html``, ``armored A``, ``hidden A``
    lists [{uri, suite, signed [names or ids], fetched [names or ids], origin, label, release, component, packages
          ["name version [phased]"], wrong: size in the Release file, failed: true, not_automatic: true}]
    cuda {keys of tests/unit/cudatrees.py} · conda {prefixes, environments of tests/unit/condatrees.py}
"""

import base64
import hashlib

import provision.collection  # noqa: F401 - makes the collection importable
from ansible_collections.gpu.provision.plugins.module_utils.apt import lists as apt_lists
from tests.unit import brokenhosts, condatrees, cudatrees, trees
from tests.unit.test_openpgp import V4, _armor, _new


def key(name):
    """(packet, id) of a throw-away key, the same for a name at every run."""
    body = V4[:-32] + hashlib.sha256(name.encode()).digest()
    fingerprint = hashlib.sha1(b"\x99" + len(body).to_bytes(2, "big") + body).hexdigest().upper()  # noqa: S324
    return _new(6, body), fingerprint[-16:]


def ident(name):
    """Id of a key by its name; 16 hex digits stand for themselves."""
    return name if len(name) == 16 and all(char in "0123456789ABCDEF" for char in name) else key(name)[1]


def signature(ids, form="id"):
    """An armored signature that names its makers, as gpg writes them (form: id, fingerprint, both)."""
    packets = b""
    for one in ids:
        raw = bytes.fromhex(ident(one))
        hashed = b"\x05\x02\x00\x00\x00\x00"
        if form in ("fingerprint", "both"):
            hashed += b"\x16\x21\x04" + bytes(12) + raw
        unhashed = b"\x09\x10" + raw if form in ("id", "both") else b""
        body = (
            b"\x04\x01\x01\x08" + len(hashed).to_bytes(2, "big") + hashed + len(unhashed).to_bytes(2, "big") + unhashed
        )
        packets += _new(2, body + b"\x00\x00\x00\x08\xff")
    text = base64.encodebytes(packets).decode()
    return f"-----BEGIN PGP SIGNATURE-----\n\n{text}=AAAA\n-----END PGP SIGNATURE-----\n"


def in_release(fields, indexes, signed):
    """Text of a signed InRelease. indexes: {name: (size, sha256)}."""
    head = "".join(f"{name}: {value}\n" for name, value in fields.items() if value is not None)
    rows = "".join(f" {sha} {size} {name}\n" for name, (size, sha) in indexes.items())
    return f"-----BEGIN PGP SIGNED MESSAGE-----\nHash: SHA512\n\n{head}SHA256:\n{rows}{signature(signed)}"


def _list(root, row, arch="amd64"):
    begin = apt_lists.prefix(row["uri"], row.get("suite", "/"), arch)
    component = row.get("component")
    inside = f"{component}/binary-{arch}/Packages" if component else "Packages"
    stanzas = []
    for line in row.get("packages", ()):
        name, version, *phased = line.split()
        more = f"Phased-Update-Percentage: {phased[0]}\n" if phased else ""
        stanzas.append(f"Package: {name}\nVersion: {version}\nArchitecture: {arch}\nDepends: x\n{more}")
    text = "\n".join(stanzas) + "\n"
    size = row.get("wrong", len(text))
    suite, _, codename = str(row.get("release", "")).partition(" ")
    fields = {
        "Origin": row.get("origin"),
        "Label": row.get("label"),
        "Suite": suite or None,
        "Codename": codename or None,
        "NotAutomatic": "yes" if row.get("not_automatic") else None,
    }
    index = {inside: (size, hashlib.sha256(text.encode()).hexdigest())}
    if "signed" in row:
        trees.write(root, f"/var/lib/apt/lists/{begin}InRelease", in_release(fields, index, row["signed"]))
        trees.write(root, f"/var/lib/apt/lists/{begin}{inside.replace('/', '_')}", text)
    if "fetched" in row:
        trees.write(root, f"/var/lib/apt/lists/partial/{begin}InRelease", in_release(fields, index, row["fetched"]))
    if row.get("failed"):
        trees.write(root, f"/var/lib/apt/lists/partial/{begin}Packages.FAILED", "")


def _keyring(root, path, names):
    if names == ["empty"]:
        trees.write(root, path, "")
    elif names == ["html"]:
        trees.write(root, path, "<html><body>404 Not Found</body></html>\n")
    else:
        data = b"".join(key(name.split()[-1])[0] for name in names)
        armored = any(name.startswith("armored ") for name in names)
        file = trees.write(root, path, _armor(data) if armored else data)
        if any(name.startswith("hidden ") for name in names):
            file.chmod(0o600)


def diagnosed(case, hosts, root):
    """Return (facts, Diagnosis) of a case; see brokenhosts."""
    tree = brokenhosts.merged(hosts.get(case.get("host"), {}), case.get("tree"))
    for path, names in tree.pop("keyrings", {}).items():
        _keyring(root, path, names)
    for row in tree.pop("lists", []):
        _list(root, row)
    conda = tree.pop("conda", None)
    if conda:
        condatrees.build(root, conda)
    cuda = tree.pop("cuda", None)
    if cuda:
        tree = _with(cudatrees.expand(cuda), tree)
    return brokenhosts.diagnosed({**case, "host": None, "tree": tree}, {None: {}}, root)


def _with(base, tree):
    merged = brokenhosts.merged(
        base, {key: value for key, value in tree.items() if key not in ("packages", "owns", "cache")}
    )
    merged["packages"] = [*tree.get("packages", []), *base["packages"]]
    merged["owns"] = {**base["owns"], **tree.get("owns", {})}
    if "cache" in base or "cache" in tree:
        merged["cache"] = [*tree.get("cache", []), *base.get("cache", [])]
    return merged
