"""Pools of damage: what inputs may suffer in use, of several kinds at three strengths each, from mild to severe.

They are not meant to improve answers but to be seen once, on a thousand or two labelled inputs: what they do to the
logits teaches a profile to recognise damage and to follow it (`recal.profile`). Kinds matter more than strengths.
"""

from __future__ import annotations

DAMAGE: dict[str, str] = {
    "image": "zoom:0.8+zoom:0.6+zoom:0.4+brightness:0.6+brightness:0.35+brightness:0.18+contrast:0.6+contrast:0.35"
    "+contrast:0.18+blur:0.6+blur:1+blur:1.6+pixelate:0.75+pixelate:0.5+pixelate:0.35+jpeg:50+jpeg:25+jpeg:10"
    "+pixels:0.02+pixels:0.07+pixels:0.2",
    "video": "zoom:0.8+zoom:0.6+zoom:0.4+brightness:0.6+brightness:0.35+brightness:0.18"
    "+frames:0.2+frames:0.5+frames:0.8",
    "series": "drop:0.1+drop:0.3+drop:0.6+coarse:0.6+coarse:0.3+coarse:0.1+quantise:0.05+quantise:0.15+quantise:0.4"
    "+noise:25+noise:12+noise:3+timemask:0.1+timemask:0.3+timemask:0.5+quieter:0.6+quieter:0.3+quieter:0.1",
    "audio": "noise:25+noise:12+noise:3+lowpass:0.5+lowpass:0.25+lowpass:0.1+quieter:0.5+quieter:0.2+quieter:0.05"
    "+bits:8+bits:5+bits:3+timemask:0.1+timemask:0.3+timemask:0.5+drop:0.1+drop:0.3+drop:0.6"
    "+highpass:0.1+highpass:0.25+highpass:0.45+clip:0.4+clip:0.15+clip:0.05+faster:1.08+faster:1.2+faster:1.4"
    "+echo:0.4+echo:0.6+echo:0.8",
    "text": "tokendrop:0.1+tokendrop:0.3+tokendrop:0.6+tokenmask:0.1+tokenmask:0.3+tokenmask:0.6+chardrop:0.05"
    "+chardrop:0.15+chardrop:0.35+sentencedrop:0.2+sentencedrop:0.4+sentencedrop:0.7+cut:0.2+cut:0.4+cut:0.7",
    "tabular": "median:0.1+median:0.3+median:0.6+permute:0.1+permute:0.3+permute:0.6"
    "+missing:0.1+missing:0.3+missing:0.6+rescale:0.1+rescale:0.25+rescale:0.5",
}
