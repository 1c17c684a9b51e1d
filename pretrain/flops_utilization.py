"""MFU: the share of a GPU's arithmetic that the model's own operations need."""

from torchtitan.tools.utils import get_peak_flops

# torchtitan takes any other name for an A100.
_KNOWN_GPUS = ("A100", "H100", "H200", "H20", "B200", "MI355X", "MI300X", "MI325X", "l40s")


def peak_flops_per_s(device_name: str) -> float | None:
    """Dense bfloat16 operations a second of a GPU by its name; None if it is not known."""
    if not any(name in device_name for name in _KNOWN_GPUS):
        return None
    return float(get_peak_flops(device_name))


def flops_utilization(
    tokens_per_s: float, *, flops_per_token: float, num_gpus: int, peak: float
) -> float:
    """tokens_per_s / num_gpus * flops_per_token / peak, a fraction.

    flops_per_token is torchtitan's 6 (P - E) + 12 L d T: P parameters, E of them in the embedding
    table, L layers of width d, T tokens in a sequence; attention counted without its causal mask.
    For TinyComma 1.8B that is 1.0183e10. peak: in bfloat16, also where float8 is used.
    Source: Chowdhery et al. 2022, "PaLM", appendix B.
    """
    return tokens_per_s / num_gpus * flops_per_token / peak
