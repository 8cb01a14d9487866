"""What a model has to do, worked out before anything runs. No process, no GPU; torch only inside the operator count.

FLOPs and bytes are counted in two independent ways. The closed form adds up a model's parts: `hardware.work` (dtypes,
shapes, FLOPs, bytes of a piece) and `parts` (a model as sizes) are its terms, `forms` its formulas for a decoder layer
(an image side brings its own), `closed_form` and `model_memory` the whole model. `config_json` reads a configuration
field by field and `quantised` its number formats, `stored` the files of a checkpoint; the rules by family are in
`model/families`, and an adapter may bring parts of its own. The other book is `operator_count`, which runs the model on
the meta device; `double_entry` compares both and explains what differs.

`prediction` puts one phase on one device. `model_analysis` holds everything about one model at one shape on one device,
and `static_document` and `static_markdown` write it down, `model_what_if` holds predictions of other choices. `counted`
stands in for the last three where the closed form has no rule.

Reading order: parts, forms, closed_form, operator_count, double_entry, prediction, analysis, document.
"""
