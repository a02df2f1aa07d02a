"""Themes: palettes of roles, and the line filter that replaces one palette with another.

Textual's theme variables are used where style sheets set colours: `Theming.css_variables` feeds the palette into them
(`App.get_css_variables`), and style sheets name `$background`, `$surface`, `$primary`. They do not replace the palette:

- Cells are `Strip`s with Rich styles, created in `tui/present` without an app. Variables exist only in style sheets;
  the line filter replaces the colours of visible lines as they are drawn, so drawing code need not know the theme.
- `App.get_theme_variable_defaults` and `Theme(variables=…)` give colours as the theme's author chose them. In 12 of
  Textual's 19 full-colour themes success, warning, error or primary has less than 4.5:1 contrast on the background
  (1.5:1 in textual-light); `palette.py` corrects that, and keeps good, warn and bad distinct for colour-blind people.
- Terminals with 16 or 256 colours, `NO_COLOR` and ASCII need weight, reversal or other characters, which variables
  cannot express.
"""
