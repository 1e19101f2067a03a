"""Parts of an action: what each decides, as choices that it turns into orders (`orders.ActionOrders`).

`envs.actions` has their names and puts them together. `size_free` ones mean the same on clusters of any
size; the other files are named after what they order.
"""
