"""Makes fge/core/coefficients.h: the polynomials behind 2^x, tanh and the normal distribution in activation.h.

Each is the Chebyshev interpolant, at 60 digits, of a smooth function on its interval, written out in powers of the
argument. A Chebyshev interpolant is within a small factor of the best polynomial of its degree; the degrees are the
first whose error is below a quarter of the type's rounding. Run `python tools/coefficients.py > fge/core/coefficients.h`
(needs mpmath) after a change here.
"""

from mpmath import cos, erfc, exp, log, mp, mpf, pi, polyval, sqrt, tanh

mp.dps = 60


def chebyshev_fit(function, low, high, degree):
    """Coefficients, lowest power first, of the interpolant of `function` at degree + 1 Chebyshev nodes."""
    n = degree + 1
    nodes = [cos(pi * (2 * j + 1) / (2 * n)) for j in range(n)]
    middle, half = (low + high) / 2, (high - low) / 2
    xs = [middle + half * t for t in nodes]
    matrix = mp.matrix(n, n)
    right = mp.matrix(n, 1)
    for i, x in enumerate(xs):
        for j in range(n):
            matrix[i, j] = x**j
        right[i] = function(x)
    return list(mp.lu_solve(matrix, right))


def largest_relative_error(function, coefficients, low, high):
    worst = mpf(0)
    for i in range(401):
        x = low + (high - low) * mpf(i) / 400
        value = function(x)
        worst = max(worst, abs(polyval(coefficients[::-1], x) - value) / abs(value))
    return worst


def fit_to(function, low, high, tolerance):
    for degree in range(2, 40):
        coefficients = chebyshev_fit(function, low, high, degree)
        if largest_relative_error(function, coefficients, low, high) < tolerance:
            return coefficients
    raise ValueError("no degree below 40 is enough")


def exp2_rest(f):
    """(2^f - 1) / f."""
    return log(2) if f == 0 else (mpf(2) ** f - 1) / f


def tanh_rest(w):
    """(tanh(z) / z - 1) / z^2 in w = z^2."""
    if w == 0:
        return mpf(-1) / 3
    z = sqrt(w)
    return (tanh(z) / z - 1) / w


MILLS_CENTRE = mpf(4)


def mills(t):
    """(a + c) Phi(-a) exp(a^2 / 2) in t = (a - c) / (a + c): smooth and bounded on all of a in [0, inf]."""
    if t == 1:
        return 1 / sqrt(2 * pi)
    a = MILLS_CENTRE * (1 + t) / (1 - t)
    if a > 500:  # asymptotic series of the Mills ratio
        return (a + MILLS_CENTRE) / (a * sqrt(2 * pi)) * (1 - 1 / a**2 + 3 / a**4 - 15 / a**6)
    return (a + MILLS_CENTRE) * erfc(a / sqrt(2)) / 2 * exp(a * a / 2)


def mills_argument(a):
    return (a - MILLS_CENTRE) / (a + MILLS_CENTRE)


def write(name, coefficients, digits, suffix):
    print(f"#define {name}_TERMS {len(coefficients)}")
    print(f"#define {name} {{ \\")
    for c in coefficients:
        print(f"    {mp.nstr(c, digits, strip_zeros=False, min_fixed=0, max_fixed=0)}{suffix}, \\")
    print("}\n")


def main():
    print("/* Made by tools/coefficients.py; lowest power first. */")
    print("#ifndef FGE_COEFFICIENTS_H\n#define FGE_COEFFICIENTS_H\n")
    for suffix, tag, digits, unit, far in (
        ("f", "F32", 12, mpf(2) ** -24, 15),
        ("", "F64", 21, mpf(2) ** -53, 40),
    ):
        # exp2_rest (about 0.7) is multiplied by |f| <= 1/2 before it is added to 1
        write(f"EXP2_REST_{tag}", fit_to(exp2_rest, -mpf("0.5001"), mpf("0.5001"), unit), digits, suffix)
        # tanh_rest likewise by z^2 / tanh's own size
        write(f"TANH_REST_{tag}", fit_to(tanh_rest, mpf(0), mpf("0.391"), unit), digits, suffix)
        write(f"MILLS_{tag}", fit_to(mills, mpf(-1), mills_argument(mpf(far)), unit / 4), digits, suffix)
    print(f"#define MILLS_CENTRE {int(MILLS_CENTRE)}")
    print("\n#endif")


if __name__ == "__main__":
    main()
