r"""The theorems as formulas: what is assumed, and what follows.

Proofs and constants are in ``docs/theory``. A paper of the user's own shows the formulas of its
theorem's docstring instead.
"""

FORMULAS: dict[str, tuple[str, str]] = {
    "wu2023.theorem_a": (
        r"c_5<1,\quad c_6<2,\quad \gamma\le\frac{\chi}{\varphi^2}",
        r"\ell_t\le\left(1-\frac{\gamma\alpha^2}{4}\right)^t\,\ell_0",
    ),
    "wu2023.theorem_b": (
        r"c_5'<1",
        r"\ell(t)\le e^{-\alpha^2t/2}\,\ell(0)",
    ),
    "wu2023.theorem_c": (
        r"d_m\ge d_m^{\min}(\lambda,N)",
        r"\sigma_N(F)^2\ge\frac{\tau_1^2\eta_Vd_m\lambda}{4}",
    ),
    "song2024.theorem_1": (
        r"\eta L<2",
        r"F_t=F_*+\frac12\sum_j\left(1-\eta\sigma_j^2\right)^{2t}\,(u_j^\top r_0)^2",
    ),
    "song2024.theorem_2": (
        r"F_0\le\frac{\lambda^2R^2}{32},\quad \eta\le\frac1L",
        r"F_t\le\left(1-\frac{\eta\lambda^2}{4}\right)^tF_0",
    ),
    "song2024.theorem_3": (
        r"F_0\le\frac{\mu_0R_J^2}{32},\quad \eta\le\frac1L",
        r"F_t\le\left(1-\frac{\eta\mu_0}{4}\right)^tF_0",
    ),
    "song2024.theorem_s": (
        r"\mathrm{rank}\,K=n-1",
        r"\lVert\nabla F(\theta_t)\rVert^2\ge2\,\sigma_X^2s_t^2\,F(\theta_t)",
    ),
    "arda2026.theorem_a": (
        r"\tilde\phi\in\Omega_\rho",
        r"\bar L\le\frac{V_0}{4\eta\tau}+\eta G^2D^2+D\varepsilon",
    ),
    "arda2026.theorem_b": (
        r"\tilde\phi\in\Omega_\rho,\quad \kappa=1-\eta G^2>0",
        r"\sqrt{\bar L}\le\frac{\varepsilon}{2\kappa} "
        r"+\sqrt{\frac{\varepsilon^2}{4\kappa^2}+\frac{V_0}{4\kappa\eta\tau}}",
    ),
    "arda2026.theorem_c": (
        r"\phi\in\Omega_\rho",
        r"\sqrt{L(\phi)}\ge\frac{(\beta^\top y-\Gamma(\rho))_+}{\sqrt n\,\lVert\beta\rVert} "
        r"-B_{lin}",
    ),
    "qin2025.theorem_d": (
        r"\lVert r_0\rVert\le r_{\max},\quad "
        r"\eta\le\min\left(\frac{a}{\beta^2},\frac{b}{L_J\lVert r_0\rVert}\right)",
        r"\lVert r_{t+1}\rVert\le(1-c\,\eta\alpha^2)\,\lVert r_t\rVert",
    ),
    "qin2025.theorem_d0": (
        r"\lVert r_0\rVert\le r_{\max},\quad "
        r"\eta\le\min\left(\frac{a}{\beta^2},\frac{b}{L_J\lVert r_0\rVert}\right)",
        r"\lVert r_{t+1}\rVert\le(1-c\,\eta\alpha^2)\,\lVert r_t\rVert, \quad "
        r"\alpha=\tfrac12\sigma_p(J_0)",
    ),
    "icl2025.theorem_a": (
        r"u_-^2>0",
        r"\ell(t)-\ell_*\le e^{-2\kappa u_-^2t}\,(\ell(0)-\ell_*)",
    ),
    "icl2025.theorem_b": (
        r"\Lambda=\lambda I,\quad U_h=p_h\frac{I}{\sqrt D}",
        r"A=sI,\quad \dot s=\lambda^2(1-\gamma s)\sqrt{c^2+4Ds^2}",
    ),
    "icl2025.theorem_c": (
        r"m=\min(D,HR)",
        r"2\ell\ge\mathrm{tr}\,\Lambda-\sum_{d\le m}\frac{\lambda_d^2}{\gamma_d}",
    ),
    "icl2025.theorem_s": (
        r"k_d=q_d=v_de_d,\quad v_d>0",
        r"\dot v_d=\lambda_d^2v_d^2(1-\gamma_dv_d^3)",
    ),
    "icl2025.theorem_d": (
        r"\eta\left[\hat G+h\hat s\left(1+\frac{\eta\hat G}{2}\right)^2\right]\le1",
        r"\ell_{t+1}\le\ell_t-\frac{\eta}{2}\lVert\nabla\ell_t\rVert^2",
    ),
    "icl2025.theorem_e": (
        r"\sigma_A>0,\quad q<1",
        r"\ell(t)-\ell_*\le e^{-2mt}\,(\ell(0)-\ell_*)",
    ),
    "kernel_regime": (
        r"q+\gamma\max_t\lVert K_t-K_0\rVert<1",
        r"\left|\lVert e_t\rVert-\lVert(I-\gamma K_0)^te_0\rVert\right| "
        r"\le\left((q+\gamma\Delta)^t-q^t\right)\lVert e_0\rVert",
    ),
}
"""LaTeX by paper and theorem; ``kernel_regime`` is about every model."""
