const typescript = require("typescript-eslint");

module.exports = typescript.config(...typescript.configs.strictTypeChecked, {
  languageOptions: { parserOptions: { project: "./tsconfig.json", tsconfigRootDir: __dirname } },
  rules: {
    // What the server sends is named by text.
    "@typescript-eslint/restrict-template-expressions": ["error", { allowNumber: true }],
    "@typescript-eslint/no-base-to-string": "off",
    "@typescript-eslint/no-confusing-void-expression": ["error", { ignoreArrowShorthand: true, ignoreVoidReturningFunctions: true }],
    // The work of a run may return nothing.
    "@typescript-eslint/no-invalid-void-type": "off",
  },
});
