"""diagnose of apt's and users' side (tests/cases/diagnose_apt.yml, diagnose_user.yml), by the real host program.

codes: every code of level error or warning, folded ones too, exactly · notes: the same of notes, where it is given
top: codes in the order in which they are to be mended · folded: {code: [codes under it]}
say: {code: [texts that its message or evidence has]} · level: {code: its level}
ignore: areas of codes that a case is not about (a GPU needs a driver, kernels, …, and has none here)
repairs: {code: [{action, and what its args have}]}; a text is the action alone
"""

import pytest

from provision.diagnose import pages
from tests.unit import apthosts, brokenhosts

FILES = ("diagnose_apt", "diagnose_user")
ALL = [(name, case) for name in FILES for case in brokenhosts.load(name)[1]]
# Most of these hosts have no GPU: their driver's packages are what the case is about.
NOT_HERE = ("gpus.missing",)
HOSTS = {name: brokenhosts.load(name)[0] for name in FILES}


@pytest.mark.parametrize(("name", "case"), ALL, ids=[case["name"] for _, case in ALL])
def test_host(name, case, tmp_path):
    _, diagnosis = apthosts.diagnosed(case, HOSTS[name], tmp_path / "host")
    found = [
        f
        for f in brokenhosts.flat(diagnosis.findings)
        if f.code not in NOT_HERE and pages.area(f.code) not in case.get("ignore", ())
    ]
    said = (
        "\n\n".join(f"{f.level} {f.code}\n{brokenhosts.words(f)}" for f in diagnosis.findings)
        + f"\n{diagnosis.unknown}"
    )
    assert sorted(f.code for f in found if f.level != "note") == sorted(case["codes"]), said
    if "notes" in case:
        assert sorted(f.code for f in found if f.level == "note") == sorted(case["notes"]), said
    if "top" in case:
        assert [f.code for f in diagnosis.findings if f in found and f.level != "note"] == case["top"], said
    for code, under in case.get("folded", {}).items():
        cause = next(f for f in diagnosis.findings if f.code == code)
        assert sorted(f.code for f in brokenhosts.flat(cause.folded)) == sorted(under), said
    for code, level in case.get("level", {}).items():
        assert next(f for f in found if f.code == code).level == level, said
    for code, texts in case.get("say", {}).items():
        own = [f for f in found if f.code == code]
        words = "\n".join("\n".join([f.message, *f.evidence]) for f in own)
        for text in texts:
            assert text in words, said
    for code, wanted in case.get("repairs", {}).items():
        repairs = [repair for f in found if f.code == code for repair in f.repairs]
        assert [repair.action for repair in repairs] == [w if isinstance(w, str) else w["action"] for w in wanted], said
        for repair, want in zip(repairs, wanted, strict=True):
            for name_, value in ({} if isinstance(want, str) else want).items():
                assert name_ == "action" or repair.args.get(name_) == value, said
    for finding in found:
        # What is folded is mended by what it is folded under.
        repaired = finding.repairs or finding.level == "note" or finding not in diagnosis.findings
        assert finding.message and finding.evidence and repaired, said
        assert finding.breaks
