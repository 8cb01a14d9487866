"""What an analysis answers, as tests ask for it."""

from llm_perf_opt.diagnosis.diagnosis_document import CaptureAnalysis, Diagnosis, ScopeRecord
from llm_perf_opt.diagnosis.ledger import Cell, Finding, is_in


def diagnosis_of(analysis: CaptureAnalysis) -> Diagnosis:
    assert isinstance(analysis.diagnosis, Diagnosis)
    return analysis.diagnosis


def rules(analysis: CaptureAnalysis) -> list[str]:
    """The causes found, in the order they are shown; without the name of the hottest kernel, which is not a fault."""
    return [finding.rule for finding in analysis.findings if finding.rule != "hottest_kernel"]


def claim_of(analysis: CaptureAnalysis, rule: str) -> Finding:
    """The one finding of a cause."""
    (found,) = [finding for finding in analysis.findings if finding.rule == rule]
    return found


def scope_of(analysis: CaptureAnalysis, name: str | None = None) -> ScopeRecord:
    """A scope by its id, or the last: what follows start-up, where it is known."""
    scopes = diagnosis_of(analysis).scopes
    return scopes[-1] if name is None else next(scope for scope in scopes if scope.id == name)


def cells_of(analysis: CaptureAnalysis, prefix: str, scope: str | None = None) -> list[Cell]:
    """The cells at or below an id, the largest first."""
    return [cell for cell in scope_of(analysis, scope).cells if is_in(cell.id, prefix)]


def owner_of(analysis: CaptureAnalysis, prefix: str, scope: str | None = None) -> tuple[str, ...]:
    """What the host was in for most of a cell's time, the innermost first."""
    return cells_of(analysis, prefix, scope)[0].owner
