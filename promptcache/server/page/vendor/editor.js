// The parts of CodeMirror that the page uses. `npm run build` bundles them into ../codemirror.min.js.
export { autocompletion, closeBrackets, closeBracketsKeymap, completionKeymap } from "@codemirror/autocomplete";
export { defaultKeymap, history, historyKeymap } from "@codemirror/commands";
export { completeFromSchema, xml, xmlLanguage } from "@codemirror/lang-xml";
export { bracketMatching, HighlightStyle, syntaxHighlighting, syntaxTree, ensureSyntaxTree } from "@codemirror/language";
export { lintKeymap, setDiagnostics } from "@codemirror/lint";
export { Compartment, EditorState } from "@codemirror/state";
export { drawSelection, EditorView, keymap, lineNumbers } from "@codemirror/view";
export { tags } from "@lezer/highlight";
